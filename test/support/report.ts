import { stripVTControlCharacters } from 'node:util';

export interface TestCounts {
  readonly passed: number;
  readonly failed: number;
}

/** One line per test; AVA's own sum of these is missing as soon as something fails. */
const PASSED = /^ {2}[✔√] (?!\[expected fail\])/;
const FAILED = [
  /^ {2}(\d+) (?:test|hook)s? failed/,
  /^ {2}(\d+) unhandled rejections?/,
  /^ {2}(\d+) uncaught exceptions?/,
  /^ {2}(\d+) tests? remained pending/,
];

/** Adds a line of what AVA's default reporter writes to the counts; a crash of a test file is a failure as well. */
export function countTests({ passed, failed }: TestCounts, line: string): TestCounts {
  const plain = stripVTControlCharacters(line);
  const failures = FAILED.map((pattern) => Number(pattern.exec(plain)?.[1] ?? 0));
  return {
    passed: PASSED.test(plain) ? passed + 1 : passed,
    failed: failures.reduce((sum, count) => sum + count, failed),
  };
}
