"""Models that read a flat token axis: attention that knows where rows begin, on packed rows, trees and caches."""
