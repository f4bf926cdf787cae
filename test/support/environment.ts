/** What the runner gives each test file. */
export const TEST_SETTINGS = [
  'TEST_DATABASE_URL',
  'TEST_TEMPORAL_ADDRESS',
  'TEST_TEMPORAL_CLI',
  'TEST_WORKFLOW_BUNDLE',
] as const;
export type TestSetting = (typeof TEST_SETTINGS)[number];

/** @throws {Error} when the test file was not started by the runner */
export function testSetting(name: TestSetting): string {
  const value = process.env[name];
  if (value) return value;
  throw new Error(`${name} is not set: run this test through the runner, npm test -- test/this.test.ts`);
}

/** Each stack is a Worker Deployment, and a namespace may usually have 100. */
export const TEST_DYNAMIC_CONFIG: readonly string[] = ['matching.maxDeployments=100000'];
