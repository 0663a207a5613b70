// Before the page is drawn: the reader's choice of light or dark, if there is one.
try {
  const chosen = localStorage.getItem("penstock-theme");
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
} catch { /* without storage, the system's choice holds */ }
