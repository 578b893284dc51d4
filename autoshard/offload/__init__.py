"""States of optimizers in host memory between steps, brought to the device part by part."""
