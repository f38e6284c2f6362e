"""The site's style sheet: system fonts, light and dark colours, no external resources."""

STYLE = """\
:root {
  color-scheme: light dark;
  --ink: #1d2430; --soft: #5a6474; --paper: #f6f5f1; --sheet: #ffffff; --line: #dcd9d0; --accent: #14605a;
  --on-accent: #ffffff; --tint: #e4f0ee;
}
@media (prefers-color-scheme: dark) {
  :root {
    --ink: #eceae4; --soft: #a9b0bb; --paper: #16191e; --sheet: #20242b; --line: #3a404a; --accent: #6cc5ba;
    --on-accent: #10201e; --tint: #233b39;
  }
}
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink); font: 1rem/1.5 system-ui, sans-serif; }
main { max-width: 64rem; margin: 0 auto; padding: 1.5rem 1rem 2rem; overflow-wrap: anywhere; }
bdi { unicode-bidi: isolate; }
footer { max-width: 64rem; margin: 0 auto; padding: 0 1rem 2rem; }
footer a { color: var(--soft); }
h1, h2 { margin: 0; line-height: 1.3; font-weight: 600; }
p { margin: .4rem 0; }
.brand { font-size: 2.2rem; font-weight: 700; letter-spacing: -.02em; color: var(--accent); }
.instruction {
  background: var(--tint); border-inline-start: 4px solid var(--accent); border-radius: 4px;
  padding: .7rem 1rem; margin: 0 0 1.2rem;
}
.instruction p { margin: 0; color: var(--soft); font-size: .85rem; }
.instruction h1 { font-size: 1.05rem; font-weight: 500; }
nav { display: flex; flex-wrap: wrap; gap: .6rem; align-items: center; margin: 0 0 1.2rem; }
.button, button {
  display: inline-block; padding: .45rem .9rem; border: 1px solid var(--accent); border-radius: 6px;
  background: var(--sheet); color: var(--accent); font: inherit; text-decoration: none; cursor: pointer;
  max-width: 100%;
}
.button:hover, button:hover, .button[aria-current], .buy .button, .search button {
  background: var(--accent); color: var(--on-accent);
}
:focus-visible { outline: 3px solid var(--ink); outline-offset: 2px; }
.search, .start { display: flex; flex-wrap: wrap; gap: .6rem; }
input, select {
  padding: .45rem .7rem; border: 1px solid var(--soft); border-radius: 6px; background: var(--sheet);
  color: var(--ink); font: inherit; max-width: 100%;
}
.search input { flex: 1 1 18rem; }
ul { list-style: none; margin: 0; padding: 0; }
.results { display: grid; grid-template-columns: repeat(auto-fill, minmax(15rem, 1fr)); gap: 1rem; }
.card {
  position: relative; display: flex; flex-direction: column; gap: .5rem; align-items: flex-start; padding: 1rem;
  background: var(--sheet); border: 1px solid var(--line); border-radius: 8px;
}
.card .button::after { content: ""; position: absolute; inset: 0; border-radius: 8px; }
.card:hover { border-color: var(--accent); }
.card h2 { font-size: 1rem; font-weight: 500; flex: 1; }
.price { font-weight: 700; font-size: 1.1rem; }
.options { margin: 0 0 1rem; }
.options h2 { font-size: .9rem; color: var(--soft); margin-bottom: .3rem; }
.options ul { display: flex; flex-wrap: wrap; gap: .5rem; }
.options .button { scroll-margin-block: 40vh; }
.facts { padding: 1rem 0; border-top: 1px solid var(--line); }
.facts h2 { font-size: 1.4rem; }
.buy .button { font-weight: 600; padding: .6rem 1.6rem; }
.page-done { text-align: center; padding-top: 4rem; }
.score { font-size: 3rem; font-weight: 700; color: var(--accent); }
.breakdown { margin: 1.2rem 0; color: var(--soft); }
.page-front form { margin: 1rem 0; }
"""
