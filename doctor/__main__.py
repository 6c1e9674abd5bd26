"""python -m doctor in the checkout, python PATH/doctor from anywhere: the same as ddp-doctor."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from ddp_doctor.__main__ import main  # noqa: E402

sys.exit(main())
