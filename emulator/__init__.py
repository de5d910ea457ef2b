"""Runs the Ascend side of the project on any CPU: the kernel language, the host-side headers, the ACL runtime."""
