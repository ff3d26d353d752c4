// Before anything is drawn: the theme that was chosen here, else that of the system.
"use strict";
(() => {
  let chosen = null;
  try { chosen = localStorage.getItem("trainmover-theme"); } catch { /* storage may be forbidden */ }
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const apply = () => {
    document.documentElement.dataset.theme = chosen ?? (dark.matches ? "dark" : "light");
    dispatchEvent(new Event("themechange"));
  };
  dark.addEventListener("change", apply);
  apply();
  window.toggleTheme = () => {
    chosen = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
    try { localStorage.setItem("trainmover-theme", chosen); } catch { /* it holds until the page is closed */ }
    apply();
  };
})();
