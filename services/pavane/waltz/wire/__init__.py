"""The four links of Waltz and its blobs in the metadata store: tables, codecs, no I/O."""
