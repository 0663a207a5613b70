"""The Python client, over every URL, for plain code and for event loops."""
