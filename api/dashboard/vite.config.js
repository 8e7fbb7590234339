import react from "@vitejs/plugin-react";
import { defineConfig } from "vite";

export default defineConfig({
  plugins: [react()],
  base: "/dashboard/",
  build: { outDir: "../pavane_api/static", emptyOutDir: true, modulePreload: { polyfill: false } },
});
