"""What is measured and how; results are files."""
