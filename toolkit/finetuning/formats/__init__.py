"""Files of labelled data in the forms that their publishers chose, read into examples."""
