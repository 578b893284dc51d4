"""Why a tensor is sharded as it is, what else it could be, and what that would cost."""
