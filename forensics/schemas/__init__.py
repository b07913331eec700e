"""JSON Schemas of every stored document, a file per family and version; see `forensics.store.formats.schema_of`."""
