"""What would serve a call, what did, and what it cost."""
