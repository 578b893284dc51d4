"""autoshard plans how a JAX program is sharded over a device mesh, before the compile."""
