import { readFileSync } from 'node:fs';
import { OperatorProblem } from '../../db/errors.ts';

/**
 * Reads a file that a build writes.
 * @param file its path from the root of the repository
 * @param script the npm script that writes it
 * @throws {OperatorProblem} if it has not been built
 */
export function readBuilt(file: string, script: string): Buffer {
  try {
    return readFileSync(new URL(`../../${file}`, import.meta.url));
  } catch (cause) {
    const text = `${file} is not built; run "npm run ${script}" after "npm ci"`;
    throw new OperatorProblem(text, { cause });
  }
}
