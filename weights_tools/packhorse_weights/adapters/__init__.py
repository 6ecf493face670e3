"""LoRA adapters in folders of PEFT."""
