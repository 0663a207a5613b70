"""Res01, in the original's dialects and our own: lists of frames to requests, replies to lists of frames.

`messages` decodes and encodes messages, `commands` is the table of all commands, `schema` describes them. See
docs/protocols/res01.md.
"""
