"""Files of parts: a table of parts that are mapped, each with a checksum, none twice. docs/compiled-model.md has it.

    prefix    64 bytes: magic, version, where the table lies, and its SHA-256
    parts     each at a multiple of 64 bytes, large ones at a page
    table     the message `Table` of container.proto; the file's last bytes

What parts mean is for those who write them. Nothing here knows a model.
"""
