"""What drivers compiled, kept between sessions. docs/cache.md says what is kept, and when it is used again.

key           what decides what a driver makes of a segment: parts, each a digest and words
digests       SHA-256 of constants, each taken once in a process, several at a time
fingerprints  of driver, host and machine
entry         one file: a key, and what was made
folder        the files: found, written, dropped
context       a driver's context that looks there first
"""

from __future__ import annotations
