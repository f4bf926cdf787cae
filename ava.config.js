/** Files that share a process take longest, so they start first. */
const startsFirst = (file) => file.includes('/test/together/');

export default {
  extensions: ['ts'],
  workerThreads: false,
  files: ['test/**/*.test.ts'],
  require: ['./test/support/ending.ts'],
  timeout: '6m',
  // More files than cores, because most tests wait for the servers half of their time.
  concurrency: 4,
  sortTestFiles: (one, other) => Number(startsFirst(other)) - Number(startsFirst(one)),
};
