/* The page of known failures: a search and a choice of the engine. Without this script the page is the whole list. */
(() => {
  const title = document.getElementById("known-failures");
  if (!title) return;
  const box = document.createElement("form");
  box.className = "failures-filter";
  box.innerHTML =
    '<input type="search" aria-label="Words to search for" placeholder="Words, such as: out of memory">' +
    '<select aria-label="Engine"><option value="">All engines</option>' +
    "<option>vLLM</option><option>SGLang</option><option>llama.cpp</option></select>" +
    '<output aria-live="polite"></output>';
  const [words, engine, count] = box.children;

  const sections = [];
  for (let one = title.nextElementSibling; one; one = one.nextElementSibling) {
    if (one.tagName === "H2") sections.push({ heading: one, groups: [] });
    else if (one.tagName === "UL") {
      const label = one.previousElementSibling;
      const rows = [...one.children].map((row) => ({ row, text: row.textContent.toLowerCase() }));
      sections.at(-1).groups.push({ label, list: one, rows, engines: label.textContent });
    }
  }

  const show = () => {
    const wanted = words.value.toLowerCase().split(/\s+/);
    let all = 0;
    let found = 0;
    for (const { heading, groups } of sections) {
      let inSection = 0;
      for (const { label, list, rows, engines } of groups) {
        const concerns = engines === "Every engine" || engines.includes(engine.value);
        let inGroup = 0;
        for (const { row, text } of rows) {
          row.hidden = !(concerns && wanted.every((word) => text.includes(word)));
          inGroup += !row.hidden;
        }
        label.hidden = list.hidden = !inGroup;
        all += rows.length;
        inSection += inGroup;
      }
      heading.hidden = !inSection;
      found += inSection;
    }
    count.textContent = found === all ? `${all} entries` : `${found} of ${all}`;
  };

  box.addEventListener("input", show);
  box.addEventListener("submit", (event) => event.preventDefault());
  // a link to a row that the filter hides shows all rows
  addEventListener("hashchange", () => {
    const row = document.getElementById(location.hash.slice(1))?.closest("li");
    if (!row?.hidden) return;
    box.reset();
    show();
    row.scrollIntoView();
  });
  title.after(box);
  show();
})();
