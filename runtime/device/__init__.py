"""The device interface, its two implementations, and the device-resident loop written once over it."""
