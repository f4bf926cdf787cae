/**
 * Thrown if a file, or the arguments of the client's command, can't be used. The message says what is
 * wrong and what to do.
 */
export class UsageError extends Error {
  override readonly name = 'UsageError';
}
