"""Room ``patches``: edits of SGLang's own files, made only on request and taken back exactly."""
