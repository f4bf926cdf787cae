import { registerCompletionHandler } from 'ava';

/** How long a test file may take to end once its tests have. */
const ENDING_MS = 10_000;

// AVA waits for a file until nothing is open in it. What a library leaves open is named, and keeps no run from ending.
registerCompletionHandler(() => {
  const end = () => {
    console.error(`left open by this file: ${process.getActiveResourcesInfo().join(', ')}`);
    process.exit();
  };
  setTimeout(end, ENDING_MS).unref();
});
