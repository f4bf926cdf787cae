/** A part of a check, or of starting what it needs: says its name, and then how long it took. */
export async function step<T>(name: string, work: () => Promise<T>): Promise<T> {
  console.log(`▸ ${name}`);
  const begun = performance.now();
  const result = await work();
  console.log(`▪ ${name}: ${((performance.now() - begun) / 1000).toFixed(1)} s`);
  return result;
}

/**
 * Runs a program that checks, and ends this process: with 1 where `main` throws, whose message is told.
 * @param main is given where to leave what it starts, which is stopped in the reverse order
 */
export async function runCheck(main: (started: AsyncDisposableStack) => Promise<unknown>): Promise<never> {
  try {
    await using started = new AsyncDisposableStack();
    await main(started);
  } catch (error) {
    console.error(error instanceof Error ? error.message : error);
    process.exitCode = 1;
  }
  // A handle that a library left open must not keep a finished run from ending.
  process.exit();
}
