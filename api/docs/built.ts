import { readFileSync } from 'node:fs';
import { OperatorProblem } from '../../db/connection/errors.ts';

/**
 * Reads a file that `npm run build` writes.
 * @param file its path from the root of the repository
 * @throws {OperatorProblem} if it has not been built
 */
export function readBuilt(file: string): Buffer {
  try {
    return readFileSync(new URL(`../../${file}`, import.meta.url));
  } catch (cause) {
    const text = `${file} is not built; run "npm run build" after "npm ci"`;
    throw new OperatorProblem(text, { cause });
  }
}
