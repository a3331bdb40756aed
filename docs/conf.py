"""Settings of Sphinx for the site that ``make docs`` builds. Warnings are errors there."""

project = "hipgemm"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.autosummary", "sphinx.ext.napoleon"]
myst_enable_extensions = ["deflist"]
myst_heading_anchors = 3

# Docstrings: NumPy style; a name in single backquotes is a link if it is documented.
default_role = "autolink"
napoleon_google_docstring = False
napoleon_use_ivar = True
napoleon_use_rtype = False
autosummary_generate = False
autodoc_typehints = "none"
autodoc_member_order = "bysource"

html_theme = "alabaster"
html_theme_options = {"description": "Low-precision GEMM for AMD GPUs, from NumPy", "page_width": "1100px"}
html_sidebars = {"**": ["about.html", "navigation.html", "searchbox.html"]}
html_copy_source = False
