"""The pictures of the documents, drawn by ``make pictures`` into docs/images.

speed       kstore beside other stores, from the numbers of BENCHMARKS.md
terminal    a session on a broker's log, from what the commands print
reports     parts of a report's page, in a headless browser
pages       pages of kstore ui, in a headless browser
drawn       SVG that is readable on light and on dark pages
"""
