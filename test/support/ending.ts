import { registerCompletionHandler } from 'ava';

/** Milliseconds that a test file may take to end after its tests. */
const ENDING_MS = 10_000;

// AVA waits until nothing is open in a test file. This prints what a library left open and ends the
// file.
registerCompletionHandler(() => {
  const end = () => {
    console.error(
      `left open by this file: ${process.getActiveResourcesInfo().join(', ')}`,
    );
    process.exit();
  };
  setTimeout(end, ENDING_MS).unref();
});
