"""How Sphinx makes the site of what `pages.py` has written: nothing is run, and nothing is asked of the network."""

import importlib.util
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

project, author, copyright = "minitransformer", "the authors", "text and figures CC BY 4.0, code MIT"
extensions = ["myst_nb", "sphinx.ext.mathjax", "sphinx_copybutton", "house"]
nb_execution_mode = "off"
nb_render_markdown_format = "myst"
myst_enable_extensions = ["dollarmath", "amsmath", "colon_fence", "deflist"]
myst_all_links_external = True  # pages.py has made them addresses of the site
suppress_warnings = ["myst.header", "mystnb.unknown_mime_type"]
smartquotes = False
copybutton_selector = "div.cell_input div.highlight pre"

html_theme = "sphinx_book_theme"
html_title = "minitransformer"
html_favicon = str(HERE / "static" / "mark.svg")
html_static_path = [str(HERE / "static")]
html_css_files = ["site.css", "slides.css"]
html_js_files = [(name, {"defer": "defer"}) for name in ("site.js", "slides.js")]
html_copy_source = html_show_sourcelink = False
html_permalinks_icon = "#"
html_theme_options = {
    "show_toc_level": 2,
    "max_navbar_depth": 1,
    "use_download_button": False,
    "use_fullscreen_button": False,
    "footer_content_items": ["extra-footer.html"],
    "extra_footer": "Text and figures: CC BY 4.0. Code: MIT.",
    "back_to_top_button": False,  # it would stand in the middle of the text
    "home_page_in_toc": False,
    "navbar_start": [],
    "navbar_center": [],
    "navbar_end": [],
    "navbar_persistent": [],
    "pygments_light_style": "a11y-high-contrast-light",
    "pygments_dark_style": "a11y-high-contrast-dark",
}
html_sidebars = {"**": ["navbar-logo.html", "search-button-field.html", "sbt-sidebar-nav.html"]}
html_context = {"default_mode": "auto"}

if (HERE / "run" / "run.js").is_file():  # ▶ on the cells; `minitransformer site` copies its files
    html_js_files.append(("run/run.js", {"defer": "defer"}))
    html_css_files.append("run/run.css")

mathjax_path = "mathjax/tex-mml-chtml.js"
mathjax3_config = {"tex": {"tags": "none"}, "options": {"enableMenu": False}}
FOLDERS = {  # what is copied beside the pages, from packages of the site's environment
    "mathjax": (
        Path(importlib.util.find_spec("sphinx-mathjax-offline").submodule_search_locations[0]) / "static" / "mathjax",
        ["tex-mml-chtml.js", "output/chtml/fonts/woff-v2", "input/tex/extensions"],
    ),
    "fonts": (
        Path(importlib.util.find_spec("font_source_serif_pro").submodule_search_locations[0]) / "files",
        [f"SourceSerifPro-{cut}.ttf" for cut in ("Regular", "It", "Semibold", "SemiboldIt")] + ["LICENSE.txt"],
    ),
}
