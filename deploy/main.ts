import { DatabaseError } from '../db/errors.ts';
import { ConfigError } from './config/config.ts';

/**
 * Runs a process until its work ends or SIGTERM / SIGINT asks it to drain. A second signal ends it at once.
 * Whatever keeps it from starting is one sentence on stderr and exit code 1.
 */
export async function main(name: string, run: (stopped: Promise<void>) => Promise<void>): Promise<void> {
  const stopped = new Promise<void>((resolve) => {
    for (const signal of ['SIGTERM', 'SIGINT'] as const) {
      process.once(signal, () => {
        resolve();
        process.once(signal, () => process.exit(1));
      });
    }
  });
  // A stray rejection is a bug to be read about, and no reason to end what others are waiting for: every fact is in
  // PostgreSQL, none in this process.
  process.on('unhandledRejection', (error) => {
    const { name: errorName, stack = '' } = error instanceof Error ? error : new Error();
    console.error(`${name}: unhandled rejection: ${errorName}\n${stack.slice(stack.indexOf('\n    at '))}`);
  });
  try {
    await run(stopped);
    process.exit(0);
  } catch (error) {
    console.error(`${name}: ${explain(error)}`);
    process.exit(1);
  }
}

function explain(error: unknown): string {
  if (error instanceof ConfigError) return error.message;
  if (error instanceof DatabaseError && error.unavailable) {
    return `PostgreSQL cannot be reached (${error.code}); check DATABASE_URL and that the server runs`;
  }
  // The SDK's name for a connection that could not be made.
  if (error instanceof Error && error.name === 'TransportError') {
    return 'Temporal cannot be reached; check TEMPORAL_ADDRESS and that the cluster runs';
  }
  if (!(error instanceof Error)) return 'stopped by something that is no error';
  const code = 'code' in error && typeof error.code === 'string' ? error.code : null;
  if (code === 'EADDRINUSE') return 'the port is taken; choose another with API_PORT';
  return error.stack ?? error.message;
}
