"""Bundles to tokens to pixels: backends, prompts, the pipeline. Never imports torch or vvs.export."""
