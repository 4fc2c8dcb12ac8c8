"""The cost model: it predicts the fastest way to read the missing rows of a superbatch (batches planned together).

`device_probe` measures a device, `device_profile` and `profile` store its rates, `device_rates` finds and corrects
them, `io_rates` turns rates into seconds, and `strategy` and `exchange_cost` choose a way to read.
"""
