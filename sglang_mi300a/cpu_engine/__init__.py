"""How to serve with no accelerator: stock SGLang's CPU engine, completed."""
