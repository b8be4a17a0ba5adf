"""Drafts looked up in text: suffix automaton, datastores, successor tables, and predictions made of their counts."""
