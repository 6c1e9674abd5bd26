
from pathlib import Path
FOLDER = Path(__file__).resolve().parent.parent / "docs/player/recordings"
def checked(r): return r
