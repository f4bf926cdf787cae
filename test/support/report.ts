import { stripVTControlCharacters } from 'node:util';

export interface TestCounts {
  readonly passed: number;
  readonly failed: number;
}

/** Matches one line per passed test. AVA's own total is missing as soon as a test fails. */
const PASSED = /^ {2}[✔√] (?!\[expected fail\])/;
/** Matches one line per failed test or hook. AVA's own total is missing if the run is interrupted. */
const FAILED = /^ {2}[✘×] \[(?:fail|unexpected pass)\]/;
/** Matches AVA's totals of failures for which it prints no line. */
const TOTALS = [
  /^ {2}(\d+) unhandled rejections?/,
  /^ {2}(\d+) uncaught exceptions?/,
  /^ {2}(\d+) tests? remained pending/,
];

/**
 * Adds a line of AVA's default reporter to the counts. A crash of a test file counts as a failure.
 */
export function countTests({ passed, failed }: TestCounts, line: string): TestCounts {
  const plain = stripVTControlCharacters(line);
  const failures = TOTALS.map((pattern) => Number(pattern.exec(plain)?.[1] ?? 0));
  return {
    passed: PASSED.test(plain) ? passed + 1 : passed,
    failed: failures.reduce(
      (sum, count) => sum + count,
      FAILED.test(plain) ? failed + 1 : failed,
    ),
  };
}

export interface TimedTest {
  readonly title: string;
  readonly seconds: number;
}

const TIMED = /^ {2}\S (?<title>.+) \((?<time>(?:[\d.]+(?:ms|[smh]) ?)+)\)$/;
const SECONDS: Readonly<Record<string, number>> = { ms: 0.001, s: 1, m: 60, h: 3600 };

/**
 * Returns the test in a line of AVA's default reporter with its duration, or null. AVA prints
 * durations from 100 ms on.
 */
export function timedTest(line: string): TimedTest | null {
  const { title, time } = TIMED.exec(stripVTControlCharacters(line))?.groups ?? {};
  if (title === undefined || time === undefined) return null;
  const parts = [...time.matchAll(/([\d.]+)(ms|[smh])/g)];
  return {
    title,
    seconds: parts.reduce(
      (sum, [, n, unit = '']) => sum + Number(n) * (SECONDS[unit] ?? 0),
      0,
    ),
  };
}

/**
 * Returns lines for the slowest tests, slowest first. Tests of a file share its process, so each
 * duration contains waits for others.
 */
export function slowestTests(tests: readonly TimedTest[], most = 10): string[] {
  const slowest = [...tests].sort((a, b) => b.seconds - a.seconds).slice(0, most);
  return slowest.map(
    ({ title, seconds }) => `${seconds.toFixed(1).padStart(7)} s  ${title}`,
  );
}
