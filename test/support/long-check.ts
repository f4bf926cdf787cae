/** Runs a part of a check, and prints its name and duration. */
export async function step<T>(name: string, work: () => Promise<T>): Promise<T> {
  console.log(`▸ ${name}`);
  const begun = performance.now();
  const result = await work();
  console.log(`▪ ${name}: ${((performance.now() - begun) / 1000).toFixed(1)} s`);
  return result;
}

/**
 * Runs a check and ends this process, with exit code 1 and the message if `main` throws.
 * @param main receives a stack for everything it starts, which is stopped in reverse order
 */
export async function runCheck(
  main: (started: AsyncDisposableStack) => Promise<unknown>,
): Promise<never> {
  try {
    await using started = new AsyncDisposableStack();
    await main(started);
  } catch (error) {
    console.error(error instanceof Error ? error.message : error);
    process.exitCode = 1;
  }
  // A handle that a library left open must not prevent a finished run from ending.
  process.exit();
}
