"""Stock SGLang serving a Quark MXFP4 Qwen3.5-MoE on AMD MI300A."""
