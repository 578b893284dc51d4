"""Which mesh: the shapes a machine tells apart, tried best bound first."""
