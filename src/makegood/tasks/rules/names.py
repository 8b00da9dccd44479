"""What an agent may be called, where it is declared and where it is asked for."""

from __future__ import annotations

import re
from typing import Final

AGENT_NAME: Final = re.compile(r"[a-zA-Z0-9_.-]{1,64}")
