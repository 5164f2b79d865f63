"""Trains the demo model from real photographs: VQ tokenizer, target, drafter and a scoring classifier."""
