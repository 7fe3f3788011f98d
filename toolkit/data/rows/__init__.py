"""From the documents of a corpus to rows of S tokens with segment ids."""
