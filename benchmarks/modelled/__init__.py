"""The model of time: what the Ascend C kernel would take, as the host model in emulator/ascendc sees it."""
