"""Wire protocols: bytes or frames to requests, replies to bytes or frames. No socket, no clock, no store."""
