/**
 * Thrown if the arguments or the CSV file of the command are not usable. The message says what is
 * wrong and what to do.
 */
export class UsageError extends Error {
  override readonly name = 'UsageError';
}
