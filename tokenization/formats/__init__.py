"""Tokenizer file formats, each with its conversion to the Hugging Face form."""
