"""Settings: one table of names, defaults, limits and help, parsed once into a frozen object.

Rules:
- A field of `Settings` is a setting. Its flag, environment variable and TOML key come from its name:
  `writer_queue_max` is `--writer-queue-max`, `PENSTOCK_WRITER_QUEUE_MAX` and `writer_queue_max = …`.
- A flag wins over the environment, the environment over the file, the file over the default.
- A bad value raises `BadSetting`, which names the key, the value and where the value came from.
- A limit has its unit in its name. Sizes are bytes, durations are milliseconds.
- Passwords inside addresses are never shown, in errors neither.
"""

from penstock.settings.sources import (
    CONFIG_ENVIRONMENT,
    DEFAULT,
    BadSetting,
    ExplainedSetting,
    ResolvedSettings,
    explain,
    load,
    resolve,
    store_address,
)
from penstock.settings.table import TABLE, Setting, Settings, format_value, host_and_port
