"""The embedded default data set: databases, questions and tokenizer, all of our own making."""
