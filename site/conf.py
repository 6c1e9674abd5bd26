"""Settings of the site that `make site` builds: what Sphinx reads, and how the theme shows it.

The pages are those that GitHub shows, where they lie: Markdown, the notebooks with the outputs that
are committed (nothing is run here), and the scripts. hooks.py has the little that Sphinx lacks for
this, navigation.yml the order of the pages. REPOSITORY_URL=https://... switches on the links to the
repository and to Colab. SITE_URL=https://.../ is where the site will stand: canonical links, the
sitemap, 404.html and the picture of a shared link need whole addresses. Without them nothing on the
site names an address of its own.
"""

import os
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
REPOSITORY_URL = os.environ.get("REPOSITORY_URL", "").rstrip("/")
SITE_URL = os.environ.get("SITE_URL", "")
sys.path.insert(0, str(HERE))  # hooks.py

project = "Data-parallel training in PyTorch"
html_title = project
language = "en"

extensions = ["myst_nb", "sphinx_copybutton", "hooks"]
if SITE_URL:
    extensions.append("sphinx_sitemap")
    html_baseurl = SITE_URL
    sitemap_url_scheme = "{link}"
    sitemap_excludes = ["exercises/*/[cosw]*.html", "tests/*"]
    sitemap_excludes += ["doctor/tests/*", "404.html"]
    html_additional_pages = {"404": "404.html"}
root_doc = "README"
source_suffix = {".md": "myst-nb", ".ipynb": "myst-nb"}
source_suffix |= dict.fromkeys((".py", ".sh", ".sbatch", ".yaml"), "script")
exclude_patterns = [".*", "doctor/.*", "tests", "notebooks/source", "site"]
# No page leads to these.
exclude_patterns += ["notebooks/lesson", "notebooks/pictures"]
exclude_patterns += ["exercises/*/hints.md"]
# What make and pip leave.
exclude_patterns += ["doctor/build", "_site", "data", "timings", "checkpoints", "runs"]
templates_path = ["templates"]

# Markdown and notebooks
myst_heading_anchors = 4  # headings have GitHub's anchors
smartquotes = False  # two dashes are a flag
nb_execution_mode = "off"
nb_merge_streams = True
nb_code_prompt_show = "Show the code"
nb_code_prompt_hide = "Hide the code"
nb_render_markdown_format = "gfm"  # tables that a cell prints
highlight_language = "none"  # a block without a language is output
copybutton_selector = (
    "div.highlight:not(.highlight-none *, .highlight-output *, .cell_output *) pre"
)
copybutton_prompt_text = r"\$ |>>> |\.\.\. "
copybutton_prompt_is_regexp = True

# Look
html_theme = "sphinx_book_theme"
html_static_path = ["static"]
html_favicon = "static/icon.svg"
html_css_files = ["site.css"]
# And on some pages more: see hooks.complete_page.
html_js_files = ["site.js", "copy_commands.js"]
html_use_index = False  # there is nothing in it
html_show_copyright = False
html_context = {"default_mode": "auto"}  # light or dark: as the reader's system
html_context["base_url"] = SITE_URL
html_sourcelink_suffix = ""  # a notebook is downloaded as .ipynb
html_theme_options = {
    "disable_search": True,  # that of Sphinx: Pagefind makes an index of what is built
    "navbar_persistent": [],
    "footer_content_items": ["tested.html"],
    "repository_url": REPOSITORY_URL,
    "repository_branch": "main",
    "use_repository_button": bool(REPOSITORY_URL),
    "use_edit_page_button": bool(REPOSITORY_URL),
    "use_issues_button": bool(REPOSITORY_URL),
    "launch_buttons": {"colab_url": "https://colab.research.google.com"} if REPOSITORY_URL else {},
}
